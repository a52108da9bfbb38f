"""python -m heteroscedastic.analysis.covariance"""

from heteroscedastic.analysis.covariance import summary

if __name__ == "__main__":
    summary.main()

"""python -m heteroscedastic.analysis.saliency"""

from heteroscedastic.analysis.saliency import summary

if __name__ == "__main__":
    summary.main()

"""python -m heteroscedastic.analysis.report"""

from heteroscedastic.analysis.report import build

if __name__ == "__main__":
    build.main()

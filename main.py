"""Trains and evaluates a model from a config: heteroscedastic train, of a checkout.

python main.py --config=configs/digits_het_full.py --workdir=runs/digits --config.seed=1
"""

from heteroscedastic.runs import train

if __name__ == "__main__":
    train.main()

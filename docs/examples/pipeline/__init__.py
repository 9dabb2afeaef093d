"""An evaluation pipeline that keeps two runs from working on one round, with lockledger in its own transactions."""

"""Rules about GPUs: driver, inventory, clocks, temperature, ECC, Xids, processes."""

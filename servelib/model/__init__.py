"""The reference model, its sampler, and a stand-in. Data plane."""

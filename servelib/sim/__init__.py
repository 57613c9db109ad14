"""Virtual time: what a step costs, and a model that charges it to a clock."""

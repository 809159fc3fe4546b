"""The live system: two engines, real transfers and a real router, and the abort storm that is run against them."""

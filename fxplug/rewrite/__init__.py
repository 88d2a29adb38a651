"""Finding patterns in graphs and replacing them."""

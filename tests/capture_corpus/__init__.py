"""Small programs, each with what eager answers, for every way of capturing them."""

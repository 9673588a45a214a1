"""What a store holds of trials, and how a command selects some of them."""

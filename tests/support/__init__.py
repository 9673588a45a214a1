"""What tests share: small trials, stores with chosen numbers, gangs, a Ray head."""

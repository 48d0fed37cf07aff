"""What a run is expected to cost, and in which shape it trains: from the profile of earlier runs."""

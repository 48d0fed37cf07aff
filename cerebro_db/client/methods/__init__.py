"""The methods of the client, by what they are about.  cerebro.py puts them together."""

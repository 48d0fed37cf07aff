"""Tables to train on, made of what happened later: ``cerebro.make_task``."""

"""What a trainer does on an order: it trains, evaluates, predicts, tries an engine, or suggests points."""

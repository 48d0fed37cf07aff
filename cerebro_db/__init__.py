"""cerebro_db: deep-learning model selection inside PostgreSQL and Greenplum."""

__version__ = "0.3.0"

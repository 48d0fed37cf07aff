"""The trainer process: builds, trains, evaluates and predicts with Keras.  It reads orders and knows no database.

May import ``cerebro_db.core``.  Nothing imports it: segment/trainer.py of cerebro_plpy starts it as a process.
"""

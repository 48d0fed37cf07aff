"""The Python code that the server loads: api.py has every function that the SQL calls; the folders have the rest.

From top to bottom: doctor, verbs, judging, predicting, runs, models, registry, packing and graphs, sessions, segment,
definitions, platform, database.  Each may import those below it, ``cerebro_db.core`` and psycopg2.  But judging,
predicting, runs and registry do not import each other, except that judging predicts.
"""

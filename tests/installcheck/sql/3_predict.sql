-- Predictions for the rows of a query and into a table, and the figures of a model.
SELECT count(*) AS rows, avg((class = species)::integer) > 0.8 AS good
  FROM cerebro.predict('fitted', 'SELECT * FROM iris') JOIN iris ON key_value = id::text;
SELECT cerebro.predict_into('fitted', 'iris', 'predicted') AS rows;
SELECT count(*) AS rows, count(DISTINCT predicted_species) AS classes FROM predicted JOIN iris USING (id);
SELECT metric, value > 0.8 AS good FROM cerebro.evaluate('fitted', 'SELECT * FROM iris') WHERE metric = 'accuracy';

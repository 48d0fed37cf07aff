-- How good forecasts were.

CREATE OR REPLACE FUNCTION cerebro.backtest(
    model_table   text,
    query         text,
    origins       integer DEFAULT 10,
    season        integer DEFAULT NULL,
    apart         integer DEFAULT NULL,
    configuration integer DEFAULT NULL,
    calibrated    boolean DEFAULT NULL
) RETURNS TABLE (step integer, origins bigint, forecasts bigint, mase double precision, naive_mase double precision,
                 wql double precision, coverage double precision, wanted_coverage double precision, mean_width double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.backtest(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.backtest(@types@) IS
'Returns how good the forecasts of a model were: it forecasts from several places of each series, the origins, with the rows up to
there alone, and compares with the rows that came. The first row, whose step is NULL, is about all forecasts; then each step ahead
has one. The model is not trained again. A notice says if origins are before the time up to which rows trained it.

- model_table: the table of trained models. The model forecasts one number, and its rows have an order of one date, time or integer.
- query: a query that returns the rows of the series with the target, or the name of a table: all its rows.
- origins: how many origins each series has at most, the last ones after which all rows to forecast are there.
- season: the rows of a season, such as 7 of days, for the errors that mase compares with. NULL: those of the model, or 1.
- apart: the rows from an origin to the next. NULL: as many as are forecast, so that no row is forecast twice.
- configuration, calibrated: as in cerebro.predict.

The columns:

- mase: the mean absolute error, in units of the mean error that the value one season before has in the rows of the series
  before its first origin. Below 1, forecasts are better than that.
- naive_mase: the same of forecasts that take the last known value of the same place in the season.
- wql: the weighted quantile loss: twice the pinball loss, as a mean over the quantiles, divided by the mean absolute value.
- coverage: the part of the values from the lowest to the highest quantile; wanted_coverage: what it should be; mean_width: of
  these intervals.';

-- Types that internal functions return.

CREATE TYPE cerebro_internal._chunk AS (start bigint, payload bytea);
COMMENT ON TYPE cerebro_internal._chunk IS 'A piece of a model state: the bytes of payload begin at the offset start of the state.';

CREATE TYPE cerebro_internal._prediction AS (output integer, rank integer, classes bytea, numbers bytea);
COMMENT ON TYPE cerebro_internal._prediction IS
'The predictions of a model for a chunk of rows at one output: all its numbers or, for one rank, the class of each '
'row with its probability.';

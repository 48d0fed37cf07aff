-- What is reported of steps in time that have a class: bouts, and transitions between classes.

CREATE OR REPLACE FUNCTION cerebro.bouts(
    query        text,
    subject      text,
    step_time    text,
    class_column text,
    step_seconds double precision DEFAULT NULL,
    valid_hours  double precision DEFAULT 10
) RETURNS TABLE (subject_value text, day date, class text, valid_days bigint, worn_hours double precision, hours double precision,
                 bouts bigint, mean_minutes double precision, usual_minutes double precision, alpha double precision,
                 share_30 double precision, share_60 double precision)
LANGUAGE plpython3u
SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.bouts(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.bouts(@types@) IS
'Returns the bouts of each subject, day and class: how long the subject stays in a class, such as sitting, before another one
begins. The rows are steps at regular times, each with a class, for instance predictions of postures. A row whose day is NULL is
about all valid days of a subject; subjects without a valid day have none.

A bout ends with the class, at a gap in time, where the class is NULL (not worn, not known), and at midnight, so that the
hours of a day add up. Each step counts as long as the step of the subject is. Days are those of step_time, which of a
timestamp with time zone depends on the setting TimeZone. For days that begin at 4, give a query with step_time - interval ''4 hours''.

- query: a query that returns the steps, for instance SELECT * FROM postures; or the name of a table: all its rows.
- subject: the column, or columns separated by commas, that identify a subject. Of several, subject_value is a JSON array.
- step_time: the column with the time at which a step begins, a timestamp. No two steps of a subject have the same.
- class_column: the column with the class of a step. NULL: the step is not worn time.
- step_seconds: the length of a step in seconds. NULL: the most frequent difference between two times of the subject. A
  difference of more than one and a half steps is a gap.
- valid_hours: a day is valid if it has so many worn hours.

The columns:

- valid_days: of a day 1 or 0; else the number of valid days.
- worn_hours: the hours of all steps with a class; hours: those with this class.
- bouts, mean_minutes: their number and their mean length.
- usual_minutes: the usual bout duration, the longest one such that half of the time is in bouts of at least this length.
- alpha: the exponent of a power law of the lengths, 1 + n / sum(ln(length / shortest length)). A high one means short bouts. NULL
  if all lengths are equal.
- share_30, share_60: the share of the time in bouts of at least 30 and 60 minutes.';

CREATE OR REPLACE FUNCTION cerebro.transitions(
    truth        text,
    predicted    text,
    tolerance    double precision,
    subject      text,
    step_time    text,
    class_column text,
    step_seconds double precision DEFAULT NULL
) RETURNS TABLE (subject_value text, class_before text, class_after text, true_transitions bigint, predicted_transitions bigint,
                 matched bigint, sensitivity double precision, predictive_value double precision)
LANGUAGE plpython3u
SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.transitions(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.transitions(@types@) IS
'Returns how many transitions from one class to another, such as from sitting to standing, are predicted at the right time: a row
for each kind over all subjects, whose subject_value is NULL, and then one for each subject and kind.

A transition is between two consecutive steps of different classes. Its time is that of the second one. There is none across a
gap in time, nor from or to a class that is NULL. A true and a predicted transition of the same subject and kind match if
their times differ by at most the tolerance. Each matches at most one; as many as possible match.

- truth, predicted: queries that return steps at regular times, each with a class, or names of tables. Both have the columns
  below. Their steps need not have the same times or lengths. Give both for the same periods. Subjects that only one of them
  has are left out, with a notice.
- tolerance: in seconds.
- subject: the column, or columns separated by commas, that identify a subject. Of several, subject_value is a JSON array.
- step_time, class_column, step_seconds: as in cerebro.bouts.

sensitivity is the share of the true transitions that match, predictive_value the share of the predicted ones. They are NULL if
there are none.';

CREATE OR REPLACE FUNCTION cerebro_internal._matched(true_times double precision[], predicted_times double precision[],
                                                     tolerance double precision) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- Variables, because each access to an element of a parameter would look for it from the beginning.
    one   double precision[] := true_times;
    other double precision[] := predicted_times;
    i     integer := 1;
    j     integer := 1;
    found bigint := 0;
BEGIN
    WHILE i <= pg_catalog.cardinality(one) AND j <= pg_catalog.cardinality(other) LOOP
        IF pg_catalog.abs(one[i] - other[j]) <= tolerance THEN
            found := found + 1;
            i := i + 1;
            j := j + 1;
        ELSIF one[i] < other[j] THEN
            i := i + 1;
        ELSE
            j := j + 1;
        END IF;
    END LOOP;
    RETURN found;
END
$$;
COMMENT ON FUNCTION cerebro_internal._matched(@types@) IS
'How many pairs of a true and a predicted time differ by at most the tolerance, if each time is in one pair at most. Both arrays
are in order. To pair the earliest two that are near enough gives the most pairs.';

WITH climb AS (
    SELECT *, (value - before) >= $jump * (ending - before) AS jumped
    FROM against
    WHERE name IN ('loss', 'critic_value_loss') AND rank IS NULL AND layer IS NULL AND direction = 1 AND NOT nonfinite
        AND good_ending > 0 AND ending >= $least * good_ending
)
SELECT step AS step_start, NULL::BIGINT AS step_end, value AS observed, good AS expected, segment, name AS signal, ending, good_ending
FROM climb WHERE jumped ORDER BY step, name LIMIT 1

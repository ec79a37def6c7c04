-- The table `swing` is made from grad_norm and act_norm.
WITH s AS (SELECT segment, step, any_value(last) AS last, median(own) AS d, max(own) AS high, min(own) AS low, median(own_gap) AS gap,
        max(moved) AS moved, median(own_jump) AS jump, count(*) AS layers
    FROM swing WHERE layer IS NOT NULL AND rows_before >= 5 AND rows_after >= 5 GROUP BY segment, step),
best AS (SELECT * FROM s WHERE layers >= 3 AND gap > $gap AND abs(d) > $shift AND high - low <= $spread
        AND jump * sign(d) > $sudden * abs(d) AND coalesce(moved <= $forward, true)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1)
SELECT step AS step_start, last AS step_end, exp(d) AS observed, 1.0 AS expected, segment, layers,
    exp(least(low, high)) AS low, exp(greatest(low, high)) AS high
FROM best
ORDER BY step_start

WITH moments AS (
    SELECT twin_step AS step, twin_segment AS segment, name, layer, twin_value AS value, twin_good AS good FROM against
    WHERE name IN ('moment1_norm', 'moment2_norm') AND rank IS NULL AND twin_good > 0
),
gradient AS (
    SELECT count(*) AS moved FROM against
    WHERE name = 'grad_norm' AND layer IS NULL AND abs(twin_value - twin_good) > $same * abs(twin_good)
)
SELECT step AS step_start, step AS step_end, avg(value) AS observed, avg(good) AS expected, segment, max(name) AS signal
FROM moments, gradient
WHERE gradient.moved = 0
GROUP BY step, segment HAVING avg(value) <= $fall * avg(good)

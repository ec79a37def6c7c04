-- Overflow events in log order; `good` counts metric rows logged before each, so a difference of 0 or 1 means back to back.
WITH e AS (SELECT e.*, coalesce(before.row, 0) AS good FROM events e ASOF LEFT JOIN train before ON e.segment = before.segment AND e.step >= before.step
    WHERE e.kind IN ('overflow', 'loss_scale_floor')),
d AS (SELECT *, CASE WHEN good - lag(good) OVER (PARTITION BY segment ORDER BY seq) <= $gap THEN 0 ELSE 1 END AS fresh FROM e),
g AS (SELECT *, sum(fresh) OVER (PARTITION BY segment ORDER BY seq) AS island FROM d),
s AS (SELECT segment, island, count(*) AS rows_bad, min(seq) AS first_seq, arg_min(value, seq) AS first_scale, arg_max(value, seq) AS last_scale, min(good) AS good_before,
        min(step) AS first_step, max(step) AS last_step, min(source) AS source, min(line) AS line, bool_or(kind = 'loss_scale_floor') AS floored
    FROM g GROUP BY segment, island),
-- the line precedes the row of its own step
n AS (SELECT s.*, coalesce(t.step, first_step) AS step_start FROM s ASOF LEFT JOIN train t ON s.segment = t.segment AND s.first_step < t.step),
l AS (SELECT n.*, coalesce(t.step, last_step) AS step_end FROM n ASOF LEFT JOIN train t ON n.segment = t.segment AND n.last_step < t.step)
SELECT step_start, step_end, last_scale AS observed, 2 * first_scale AS expected, segment, rows_bad, source, line,
    CASE WHEN floored THEN ', the minimum: the run cannot go on' ELSE '' END AS floor_note,
    CASE WHEN floored OR (good_before > 0 AND first_scale > last_scale) THEN 'root' ELSE 'benign' END AS role
FROM l WHERE rows_bad >= $hold OR floored ORDER BY first_seq

-- A border is a new segment, or a `resumed` event inside one; a segment that starts at its own beginning is another
-- run.
WITH r AS (SELECT segment, step, loss AS x, abs(loss - lag(loss) OVER (PARTITION BY segment ORDER BY step)) AS d
    FROM train
    WHERE fin(loss) AND loss > 0),
noise AS (SELECT 1.4826 / sqrt(2) * median(d) AS sigma FROM r),
starts AS (SELECT segment, min(step) AS first FROM r GROUP BY segment),
borders AS (SELECT s.segment, s.first AS border, p.segment AS old
    FROM starts s JOIN starts p ON p.segment = s.segment - 1
    WHERE s.first > p.first + 1
    UNION SELECT DISTINCT e.segment, (SELECT min(step) FROM r WHERE r.segment = e.segment AND r.step > e.step),
        e.segment
        FROM events e
        WHERE e.kind = 'resumed' AND e.step IS NOT NULL),
sides AS (SELECT b.*,
    (SELECT median(x)
        FROM (SELECT x FROM r WHERE r.segment = b.segment AND r.step >= b.border ORDER BY step LIMIT $window)) AS after,
        (SELECT median(x)
            FROM (SELECT x
                FROM r
                WHERE r.segment = b.old AND r.step < b.border
                ORDER BY step DESC LIMIT $window)) AS before
            FROM borders b
            WHERE border IS NOT NULL)
SELECT border AS step_start, border AS step_end, after AS observed, before AS expected, segment, after / before AS times
FROM sides, noise
    WHERE before > 0 AND after > $jump * before AND after - before > $noise * coalesce(sigma, 0)
    ORDER BY border

-- The onset is the row where the means of five rows before and after it differ most.
WITH u AS (SELECT segment, step, 'kl_old' AS signal, abs(kl_old) AS x, $kl AS least, bad(grad_norm__state) AS poisoned
    FROM train
    WHERE fin(kl_old)
    UNION ALL SELECT segment, step, 'clip_frac', clip_frac, $clip, bad(grad_norm__state) FROM train
        WHERE fin(clip_frac)),
t AS (SELECT *, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment, signal) AS n, avg(x) OVER b AS was,
    avg(x) OVER a AS becomes
    FROM u
    WINDOW w AS (PARTITION BY segment, signal ORDER BY step),
        b AS (PARTITION BY segment, signal ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, signal ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, signal, arg_max(k, becomes - was) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 4
    GROUP BY segment, signal),
s AS (SELECT segment, signal, onset, any_value(least) AS least, min(step) FILTER (WHERE k = onset) AS step_start,
    max(step) AS step_end, median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before,
    median(x) FILTER (WHERE k >= onset) AS after, avg(poisoned::INT) FILTER (WHERE k >= onset) AS poisoned
    FROM t JOIN o USING (segment, signal)
    GROUP BY segment, signal, onset),
h AS (SELECT s.segment, s.signal, avg((x > (before + after) / 2)::INT) FILTER (WHERE k >= onset) AS held,
    avg((x < (before + after) / 2)::INT) FILTER (WHERE k < onset) AS calm
    FROM t JOIN s USING (segment, signal)
    GROUP BY s.segment, s.signal)
SELECT step_start, step_end, after AS observed, before AS expected, segment, signal
FROM s JOIN h USING (segment, signal)
WHERE after - before >= least AND before <= $early * after AND held >= $hold AND calm >= $hold AND poisoned < 0.5
ORDER BY step_start, signal

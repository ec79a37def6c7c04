WITH t AS (SELECT segment, step, zero_grad_frac AS x, grad_norm AS g, aux_loss, zero_std_frac,
        row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train WHERE fin(zero_grad_frac) AND NOT bad(grad_norm__state) AND coalesce(nonfinite_grad_frac = 0, true)),
base AS (SELECT segment, median(x) AS early, median(g) AS g_early, median(aux_loss) AS aux_early FROM t WHERE k <= 6
    GROUP BY segment),
h AS (SELECT t.*, early, g_early, aux_early,
    x >= $level AND x - early >= $rise AND g > $alive * g_early AND coalesce(zero_std_frac < 0.9, true)
        AND (x >= $sure OR coalesce(aux_loss <= $balance * aux_early, true)) AS off
    FROM t JOIN base USING (segment)),
m AS (SELECT *, share_left(off, segment, step) AS share FROM h),
f AS (SELECT segment, min(step) AS first FROM m WHERE off AND share >= 0.75 GROUP BY segment),
-- A layer that lost nearly all of its norm beside one that kept it is starved; values that underflow hardly lower any.
d AS (SELECT l.segment, layer, median(grad_norm) FILTER (WHERE step >= first) / nullif(median(grad_norm) FILTER (WHERE step < first), 0) AS kept
    FROM layer l JOIN f USING (segment) WHERE layer IS NOT NULL AND fin(grad_norm) GROUP BY l.segment, layer),
starved AS (SELECT segment FROM d GROUP BY segment HAVING min(kept) < $starved * max(kept))
SELECT first AS step_start, max(step) AS step_end, median(x) AS observed, any_value(early) AS expected, segment,
    median(g) AS norm, any_value(g_early) AS norm_before, CASE WHEN median(x) < $sure THEN CASE WHEN count(aux_loss) > 0 THEN 0.6 ELSE $unsure END END AS strength
FROM m JOIN f USING (segment) ANTI JOIN starved USING (segment) WHERE step >= first
GROUP BY segment, first HAVING count(*) >= 4
ORDER BY step_start

WITH e AS (SELECT segment, step, eval_loss AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train
    WHERE fin(eval_loss)),
b AS (SELECT segment, arg_min(step, x) AS best_step, min(x) AS best, max(step) AS last_step, arg_max(x, step) AS last
    FROM e
    GROUP BY segment),
a AS (SELECT b.*, (SELECT count(*) FROM e WHERE e.segment = b.segment AND e.step > best_step) AS after,
        (SELECT min(x) FROM e WHERE e.segment = b.segment AND e.step > best_step) AS low,
        (SELECT median(loss)
            FROM train t
            WHERE t.segment = b.segment AND fin(loss) AND t.step <= best_step
                AND t.step > best_step - (last_step - best_step)) AS train_then,
        (SELECT median(loss)
            FROM train t
            WHERE t.segment = b.segment AND fin(loss) AND t.step > (best_step + last_step) / 2) AS train_now
            FROM b)
SELECT (SELECT min(step) FROM e WHERE e.segment = a.segment AND e.step > best_step) AS step_start,
    last_step AS step_end, last AS observed, best AS expected, segment
FROM a WHERE after >= $hold AND last > $rise * best AND train_now < train_then ORDER BY step_start

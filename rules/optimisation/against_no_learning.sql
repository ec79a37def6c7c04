WITH learning AS (
    SELECT *, CASE WHEN name = 'loss' THEN -1 ELSE 1 END AS better,
        CASE WHEN name = 'loss' THEN $gain_loss * good_before ELSE $gain END AS least
    FROM against
    WHERE name IN ('reward', 'score', 'loss', 'accuracy', 'reward_accuracy') AND rank IS NULL AND layer IS NULL
)
SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal, before, good_before
FROM learning
WHERE direction = -better AND NOT nonfinite AND better * (good_ending - good_before) >= least
    AND better * (ending - before) < $learned * better * (good_ending - good_before)
ORDER BY step, name LIMIT 1

-- Same weights, same answers (entropy, length), another reward: only the reward can have changed.
WITH others AS (
    SELECT count(*) AS compared,
        count(*) FILTER (WHERE abs(twin_value - twin_good) > $same * greatest(abs(twin_value), abs(twin_good))) AS moved
    FROM against
    WHERE twin AND rank IS NULL AND (name IN ('entropy', 'response_length', 'kl_ref', 'accuracy') OR signal = 'act_norm')
),
engines AS (
    SELECT count(*) AS signals FROM against WHERE name IN ('mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_k3')
)
SELECT twin_step AS step_start, twin_step AS step_end, twin_value AS observed, twin_good AS expected, twin_segment AS segment, name AS signal,
    CASE WHEN abs(twin_value - twin_good) < $sure OR engines.signals = 0 THEN $weak END AS strength
FROM against, others, engines
WHERE name IN ('reward', 'score') AND rank IS NULL AND layer IS NULL AND abs(twin_value - twin_good) >= $least
    AND others.compared >= 2 AND others.moved = 0
    AND NOT EXISTS (
        SELECT 1 FROM against
        WHERE name IN ('mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_k3') AND abs(twin_value) >= $gap * abs(twin_good)
    )
ORDER BY name LIMIT 1

-- With the forward pass of the good run, weights and inputs are the same: what the norm differs by, the backward pass does.
WITH moved AS (  -- forward signals that differ where the runs first do: other weights or inputs
    SELECT count(*) AS signals
    FROM against
    WHERE (name IN ('entropy', 'reward', 'score', 'response_length', 'accuracy', 'kl_ref') OR signal = 'act_norm')
        AND abs(twin_value - twin_good) > $same * greatest(abs(twin_value), abs(twin_good))
),
loss AS (SELECT max(twin_value / twin_good) AS times FROM against WHERE name = 'loss' AND twin_good > 0),
norms AS (
    SELECT twin_segment AS segment, twin_step AS step, twin_value AS value, twin_good AS good, layer,
        twin_value / twin_good AS times
    FROM against
    WHERE signal = 'grad_norm' AND (name = 'grad_norm') AND rank IS NULL AND twin_value > 0 AND twin_good > 0
),
farthest AS (SELECT * FROM norms ORDER BY abs(ln(times)) DESC, layer NULLS FIRST LIMIT 1)
SELECT farthest.step AS step_start, farthest.step AS step_end, farthest.value AS observed, farthest.good AS expected,
    farthest.segment, 'grad_norm' AS signal, farthest.layer, farthest.times,
    CASE WHEN farthest.layer IS NULL THEN '' ELSE printf(' of layer %d', farthest.layer) END AS place,
    coalesce((
        SELECT 'about ' || min_by(what, place) FROM multiple WHERE abs(farthest.times / size - 1) <= $near
    ), 'no round multiple') AS multiple,
    CASE WHEN loss.times IS NULL THEN 'the forward pass still the same' ELSE 'the loss off by the same' END AS forward
FROM farthest, moved, loss
WHERE moved.signals = 0 AND abs(ln(farthest.times)) <= ln($most) AND (abs(ln(farthest.times)) >= ln($least) OR EXISTS (
    SELECT 1 FROM multiple WHERE abs(farthest.times / size - 1) <= $exact
))
    AND (loss.times IS NULL OR abs(loss.times - 1) <= $same OR abs(loss.times / farthest.times - 1) <= $exact)

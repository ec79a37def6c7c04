-- mismatch_kl against mismatch_k3 over the rows where the gap is open.
WITH k AS (SELECT g.segment, median(mismatch_k3) AS k3 FROM gap g JOIN train t ON t.segment = g.segment AND t.step >= g.began
   WHERE main GROUP BY g.segment)
SELECT began AS step_start, last AS step_end, lopsided AS observed, 1.0 AS expected, segment, 'mismatch_kl' AS signal
FROM gap JOIN k USING (segment)
WHERE main AND lopsided < $ratio AND (k3 >= $least OR bursts > $bursts)

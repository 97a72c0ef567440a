# Score of risks by riskRegression: Rscript score.R risks.csv out.json (called by r_oracles.py).
library(survival)
library(prodlim)
library(riskRegression)
given <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(given[1])

scored <- function(rows, cause) {
  found <- Score(list(a = as.matrix(rows$a), b = as.matrix(rows$b)), formula = Hist(time, cause) ~ 1, data = rows,
                 times = 365, cause = cause, cens.model = "km", metrics = c("auc", "brier"), summary = "ipa")
  auc <- as.data.frame(found$AUC$score)
  brier <- as.data.frame(found$Brier$score)
  brier <- brier[brier$model %in% c("a", "b"), ]
  list(auc = auc$AUC, brier = brier$Brier, ipa = brier$IPA)
}
out <- list(version = as.character(packageVersion("riskRegression")))
out$competing <- scored(rows, 1)
out$single <- scored(transform(rows, cause = as.integer(cause == 1)), 1)
jsonlite::write_json(out, given[2], digits = 12, auto_unbox = TRUE)

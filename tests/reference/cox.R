# Cox regressions of start-stop rows: Rscript cox.R table.csv pbc2.csv out.json (called by r_oracles.py).
library(survival)
given <- commandArgs(trailingOnly = TRUE)

numbers <- function(fit) {
  found <- summary(fit)$coef
  list(coef = found[, "coef"], se = found[, "se(coef)"], robust_se = found[, "robust se"],
       p_proportional = cox.zph(fit, terms = FALSE)$table[, "p"])  # the last is of all together
}
fitted <- function(formula, rows, ties) {
  numbers(coxph(formula, rows, cluster = id, ties = ties, model = TRUE, x = TRUE, control = coxph.control(eps = 1e-12, toler.chol = 1e-13)))
}

# ---- a flat table with ties: events of three kinds, 0 = censored
rows <- read.csv(given[1])
out <- list(version = as.character(packageVersion("survival")))
for (ties in c("efron", "breslow")) for (of in 1:2) {
  formula <- Surv(start, stop, status == of) ~ I(age / 10) + log(marker) + (sex == "m")
  out$table[[ties]][[paste0("status_", of)]] <- fitted(formula, rows, ties)
}

# ---- PBC2 from its MEDS rows (subject, days since enrolment, code, value), by tmerge: independent of our rows
meds <- read.csv(given[2], stringsAsFactors = FALSE)
at <- function(code) meds[meds$code == code, c("subject", "day", "value")]
ends <- meds[meds$code %in% c("MEDS_DEATH", "TRANSPLANT", "END_OF_FOLLOWUP"), ]
ends <- ends[order(ends$subject, ends$day, match(ends$code, c("MEDS_DEATH", "TRANSPLANT", "END_OF_FOLLOWUP"))), ]
ends <- ends[!duplicated(ends$subject), ]
people <- data.frame(id = ends$subject, end = ends$day, of = ends$code)
born <- at("MEDS_BIRTH")
people$age <- -born$day[match(people$id, born$subject)] / 365.25
people$male <- people$id %in% at("GENDER//male")$subject
spells <- tmerge(people, people, id = id,
                 death = event(end, of == "MEDS_DEATH"), transplant = event(end, of == "TRANSPLANT"))
spells <- tmerge(spells, at("LAB//serBilir"), id = subject, bili = tdc(day, value))
spells <- tmerge(spells, at("LAB//albumin"), id = subject, albumin = tdc(day, value))
spells <- tmerge(spells, at("LAB//serChol"), id = subject, chol = tdc(day, value))
for (ties in c("efron", "breslow")) {
  out$pbc2[[ties]]$death <-
    fitted(Surv(tstart, tstop, death) ~ log(bili) + I(age / 10) + male + albumin, spells, ties)
  out$pbc2[[ties]]$transplant <- fitted(Surv(tstart, tstop, transplant) ~ log(bili) + chol, spells, ties)
}
jsonlite::write_json(out, given[3], digits = 12, auto_unbox = TRUE)

# Runs single random starts of flexmix on one problem, for benchmarks/flexmix_real.py.
#
# Usage: Rscript flexmix_real.R DATA.csv FAMILY COMPONENTS SHARES_VARIANCE TOLERANCE STARTS FOLDER
#
# The columns of DATA.csv tell the model: y, covariates x1, x2, ... with one coefficient per
# component, covariates s1, s2, ... whose coefficient all components share, gating covariates
# g1, g2, ..., and trials, offset and group. FAMILY: bernoulli, binomial, poisson or gaussian.
# SHARES_VARIANCE: 1 if all components have the same variance, else 0.
#
# FOLDER/versions.csv has the versions, FOLDER/runs.csv one row per start with seed and seconds of
# the processor (NA if the start failed), and FOLDER/SEED.csv the posterior probabilities at its end.
# They are written after each start, so that those that ended are there if a time limit is reached.

suppressPackageStartupMessages(library(flexmix))

arguments <- commandArgs(trailingOnly = TRUE)
data <- read.csv(arguments[1])
family <- arguments[2]
components <- as.integer(arguments[3])
shares_variance <- arguments[4] == "1"
tolerance <- as.numeric(arguments[5])
starts <- as.integer(arguments[6])
folder <- arguments[7]

LARGEST_NUMBER_OF_ITERATIONS <- 100000

named <- function(prefix) grep(paste0("^", prefix, "[0-9]+$"), names(data), value = TRUE)
terms_of <- function(columns) paste(c("1", columns), collapse = " + ")

is_binomial <- family %in% c("bernoulli", "binomial")
if (family == "bernoulli") data$trials <- 1
response <- if (is_binomial) "cbind(y, trials - y)" else "y"
groups <- if (is.null(data$group)) "" else "| group"
formula <- as.formula(paste(response, "~", terms_of(named("x")), groups))
r_family <- if (is_binomial) "binomial" else family
shared <- named("s")
model <- if (length(shared) == 0 && !shares_variance) {
  FLXMRglm(family = r_family, offset = data$offset)
} else {
  # "0": the bias is in the formula and so has one value per component.
  fixed <- as.formula(paste("~", paste(c("0", shared), collapse = " + ")))
  FLXMRglmfix(family = r_family, fixed = fixed, varFix = shares_variance, offset = data$offset)
}
gate <- named("g")
concomitant <- if (length(gate) == 0) {
  FLXPconstant()
} else {
  FLXPmultinom(as.formula(paste("~", terms_of(gate))))
}
control <- list(iter.max = LARGEST_NUMBER_OF_ITERATIONS, tolerance = tolerance, minprior = 0)

versions <- data.frame(R = paste(R.version$major, R.version$minor, sep = "."),
                       flexmix = as.character(packageVersion("flexmix")))
write.csv(versions, file.path(folder, "versions.csv"), row.names = FALSE)

for (seed in seq_len(starts)) {
  set.seed(seed)
  fit <- NULL
  time <- system.time(
    fit <- tryCatch(
      flexmix(formula, data = data, k = components, model = model, concomitant = concomitant,
              control = control),
      error = function(condition) message("seed ", seed, ": ", conditionMessage(condition)))
  )
  seconds <- time[["user.self"]] + time[["sys.self"]]
  if (is.null(fit)) seconds <- NA
  if (!is.null(fit)) {
    write.csv(posterior(fit), file.path(folder, paste0(seed, ".csv")), row.names = FALSE)
  }
  cat(seed, ",", seconds, "\n", sep = "", file = file.path(folder, "runs.csv"), append = TRUE)
}

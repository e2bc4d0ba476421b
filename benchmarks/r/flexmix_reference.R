# Makes tests/em/flexmix_reference.json: where flexmix ends from stated starts.
#
# Usage: Rscript benchmarks/r/flexmix_reference.R tests/data tests/em/flexmix_reference.json
#
# A start gives each row a component: posterior probability .9 there and .1 elsewhere, normalised;
# it is what flexmix itself draws. The start taken is the first that ends where most starts end, so
# that a step more or less does not decide between two maxima.
#
# Three drivers of flexmix do not maximise the likelihood in their M-step and are replaced by ones
# that do, the engine being flexmix's own: "gaussian" (FLXMRglm divides the residuals' sum of
# squares by n - p), "gamma" (FLXMRglm has the reciprocal link and a moment estimate of shape) and
# the gate (FLXPmultinom ends its quasi-Newton iterations at 1e-8 relative).

suppressPackageStartupMessages(library(flexmix))
suppressPackageStartupMessages(library(nnet))

arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]
output <- arguments[2]

N_STARTS <- 20
TRIAL <- list(iter.max = 2000, tolerance = 1e-8, minprior = 0)
# An increment of 1e-15 of the log-likelihood is rounding: the end is a fixed point.
FINAL <- list(iter.max = 10000, tolerance = 1e-15, minprior = 0)

likelihood_gaussian <- function() {
  driver <- FLXMRglm(family = "gaussian")
  define <- driver@defineComponent
  driver@fit <- function(x, y, w, component) {
    fit <- lm.wfit(x, y, w = w)
    define(list(coef = coef(fit), df = ncol(x) + 1, sigma = sqrt(sum(w * fit$residuals^2) / sum(w))))
  }
  driver
}

likelihood_gamma <- function() {
  driver <- FLXMRglm(family = "Gamma")
  driver@defineComponent <- function(para) {
    predict <- function(x, ...) exp(x %*% para$coef)
    logLik <- function(x, y, ...) {
      dgamma(y, shape = para$shape, scale = predict(x) / para$shape, log = TRUE)
    }
    new("FLXcomponent", parameters = list(coef = para$coef, shape = para$shape),
        predict = predict, logLik = logLik, df = para$df)
  }
  driver@fit <- function(x, y, w, component) {
    fit <- glm.fit(x, y, weights = w, family = Gamma(link = "log"), start = component$coef,
                   control = list(epsilon = 1e-14, maxit = 50))
    ratio <- y / fit$fitted.values
    gap <- sum(w * (ratio - log(ratio))) / sum(w) - 1
    shape <- exp(uniroot(function(a) a - digamma(exp(a)) - gap, c(-5, 20), tol = 1e-14)$root)
    driver@defineComponent(list(coef = coef(fit), shape = shape, df = ncol(x) + 1))
  }
  driver
}

TIGHT <- list(reltol = 1e-14, abstol = 0, maxit = 1000)

likelihood_gate <- function(formula) {
  driver <- FLXPmultinom(formula)
  loose <- driver@fit
  driver@fit <- function(x, y, w = rep(1, nrow(y)), ...) do.call(loose, c(list(x, y, w), TIGHT))
  driver
}

gate_coefficients <- function(fit, gate, data) {
  x <- model.matrix(gate, data)
  refit <- do.call(nnet::multinom, c(list(posterior(fit) ~ 0 + x, trace = FALSE), TIGHT))
  unname(t(coef(refit)))
}

read_data <- function(name) read.csv(file.path(folder, paste0(name, ".csv")))

problems <- list(
  list(name = "seizure", data = "seizure", components = 2,
       formula = Seizures ~ Treatment * log(Day),
       model = function(data) FLXMRglm(family = "poisson", offset = log(data$Hours))),
  # Without its groups the likelihood of yb has its supremum at infinite coefficients.
  list(name = "NPreg yb", data = "NPreg", components = 2, group = "id2",
       formula = cbind(yb, 1 - yb) ~ x | id2,
       model = function(data) FLXMRglm(family = "binomial")),
  list(name = "NPreg yn", data = "NPreg", components = 2, formula = yn ~ x + I(x^2),
       model = function(data) likelihood_gaussian()),
  list(name = "tonedata gamma", data = "tonedata", components = 2, formula = tuned ~ stretchratio,
       model = function(data) likelihood_gamma()),
  list(name = "betablocker shared", data = "betablocker", components = 3, group = "Center",
       formula = cbind(Deaths, Total - Deaths) ~ 1 | Center,
       model = function(data) FLXMRglmfix(family = "binomial", fixed = ~Treatment)),
  list(name = "betablocker", data = "betablocker", components = 2, group = "Center",
       formula = cbind(Deaths, Total - Deaths) ~ Treatment | Center,
       model = function(data) FLXMRglm(family = "binomial")),
  list(name = "patent gate", data = "patent", components = 3, formula = Patents ~ lgRD,
       model = function(data) FLXMRglm(family = "poisson"), gate = ~RDS)
)

draw_labels <- function(problem, data, seed) {
  set.seed(seed)
  if (is.null(problem$group)) {
    return(sample(problem$components, nrow(data), replace = TRUE))
  }
  group <- factor(data[[problem$group]])
  sample(problem$components, nlevels(group), replace = TRUE)[group]
}

run <- function(problem, data, labels, control) {
  start <- matrix(0.1, nrow(data), problem$components)
  start[cbind(seq_along(labels), labels)] <- 0.9
  options <- list(problem$formula, data = data, k = problem$components, cluster = start,
                  model = problem$model(data), control = control)
  if (!is.null(problem$gate)) options$concomitant <- likelihood_gate(problem$gate)
  do.call(flexmix, options)
}

reference <- function(problem) {
  data <- read_data(problem$data)
  labels <- lapply(seq_len(N_STARTS), function(seed) draw_labels(problem, data, seed))
  trials <- sapply(labels, function(label) {
    tryCatch(run(problem, data, label, TRIAL)@logLik, error = function(condition) -Inf)
  })
  counts <- sapply(trials, function(trial) sum(abs(trials - trial) < 0.01))
  chosen <- which(counts == max(counts, na.rm = TRUE))[1]
  fit <- run(problem, data, labels[[chosen]], FINAL)
  table <- parameters(fit)
  gate <- if (is.null(problem$gate)) NA else gate_coefficients(fit, problem$gate, data)
  message(problem$name, ": start ", chosen, ", ", fit@iter, " iterations, ", fit@logLik)
  list(name = problem$name, log_likelihood = fit@logLik, iterations = fit@iter,
       n_components = problem$components, labels = labels[[chosen]] - 1,
       parameter_names = rownames(table), parameters = unname(table), weights = prior(fit),
       gate = gate)
}

result <- list(
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."),
                  flexmix = as.character(packageVersion("flexmix"))),
  problems = lapply(problems, reference)
)
jsonlite::write_json(result, output, digits = NA, auto_unbox = TRUE, na = "null")

//! logging.

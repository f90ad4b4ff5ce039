//! Rewrites of a graph.

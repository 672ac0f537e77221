//! When and how batches leave: windows, own times, order, parked applications, topology.

mod cost;
mod crowds;
mod far;
mod own_times;
mod parked;
mod refused;
mod topology;
mod whole;
mod windows;

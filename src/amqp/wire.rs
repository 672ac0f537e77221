//! Headers and bodies to types, and back; pure.

//! Ends a whole process tree, in layers, and proves that it is empty.

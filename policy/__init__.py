"""Pure decisions about speculation: values in, values out; no clock, no I/O beyond the hint store, no Ray."""

"""The fault lab: programs, labels, and the corpus that rules and classifier are measured on."""

"""What is computed from turns: their columns, credit, advantage estimators, the policy objective."""

"""Figures in one house style, for plans and studies. matplotlib is imported when one is drawn, never before."""

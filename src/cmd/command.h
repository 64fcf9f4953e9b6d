/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of the command line, one file each. argv[0] is the command's own name. They return
 * the exit status: 0, 1 for a failure (said on stderr), 2 for wrong usage.
 */
#pragma once

int cmd_bench(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_guest(int argc, char **argv);
int cmd_migrate(int argc, char **argv);
int cmd_qmp(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_status(int argc, char **argv);

// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	providerschema "github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// passphraseVariable is where the provider block's passphrase falls back to.
const passphraseVariable = "CAPI_BACKUP_PASSPHRASE"

// shortestPassphrase keeps a backup, which holds the keys of all clusters, from
// what can be tried out.
const shortestPassphrase = 12

func backupPassphraseAttribute() providerschema.StringAttribute {
	return providerschema.StringAttribute{
		Optional: true, Sensitive: true,
		MarkdownDescription: fmt.Sprintf("Passphrase of at least %d characters with which backups are encrypted that name no recipients. Nothing of it lies in "+
			"state, and it may come from an ephemeral value. `age -d` asks for it. Environment: `%s`.", shortestPassphrase, passphraseVariable),
		Validators: []validator.String{checkedAs("a passphrase that can be typed", "Unable to use the passphrase of backups", checkPassphrase)},
	}
}

// checkPassphrase never quotes it.
func checkPassphrase(text string) error {
	switch {
	case strings.TrimSpace(text) != text || strings.ContainsAny(text, "\r\n"):
		return errors.New("it begins or ends with white space or has a line end, which nobody can type who decrypts the backup: with file() use trimspace(file(...))")
	case utf8.RuneCountInString(text) < shortestPassphrase:
		return fmt.Errorf("it has %d characters, and a backup, which holds the keys of all clusters, needs at least %d", utf8.RuneCountInString(text), shortestPassphrase)
	}
	return nil
}

// backupPassphrase answers the passphrase of the provider block, else of the
// environment; empty when there is none.
func backupPassphrase(configured types.String) (string, error) {
	if !configured.IsNull() {
		return configured.ValueString(), nil
	}
	text := os.Getenv(passphraseVariable)
	if text == "" {
		return "", nil
	}
	if err := checkPassphrase(text); err != nil {
		return "", fmt.Errorf("the environment variable %s: %w", passphraseVariable, err)
	}
	return text, nil
}

// errNoBackupKey says that there is nothing to encrypt a backup with.
var errNoBackupKey = fmt.Errorf("a backup holds the keys of all clusters, and there is nothing to encrypt it with: give it recipients, or set backup_passphrase in the provider block or %s", passphraseVariable)

// backup answers the backup that is to be made, and nil when none is.
func (r *pivotResource) backup(ctx context.Context, m *pivotModel) (*pivot.Backup, diag.Diagnostics) {
	if m.Backup.IsNull() || m.Backup.IsUnknown() {
		return nil, nil
	}
	var model pivotBackupModel
	diags := m.Backup.As(ctx, &model, basetypes.ObjectAsOptions{})
	made := &pivot.Backup{Dir: model.Directory.ValueString()}
	if model.Recipients.IsNull() && r.data != nil {
		made.Passphrase = r.data.backupPassphrase
	}
	diags.Append(model.Recipients.ElementsAs(ctx, &made.Recipients, false)...)
	return made, diags
}

// checkBackup refuses a backup at plan that could not be encrypted at apply.
func (r *pivotResource) checkBackup(ctx context.Context, m *pivotModel) diag.Diagnostics {
	var diags diag.Diagnostics
	if m.Backup.IsNull() || m.Backup.IsUnknown() || r.data == nil || r.data.backupPassphraseUnknown {
		return diags
	}
	var model pivotBackupModel
	diags.Append(m.Backup.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if model.Recipients.IsNull() && r.data.backupPassphrase == "" {
		diags.AddAttributeError(path.Root("backup"), "Unable to encrypt the backup", sentence(errNoBackupKey.Error()))
	}
	return diags
}
